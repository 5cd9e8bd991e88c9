"""The table of tiny models whose outputs tests/golden/families keeps."""

from tests.golden.family_recipes import experts, gemma, llama_like, partial, post_norm, qwen
from tests.golden.family_recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for module in (llama_like, partial, post_norm, qwen, experts, gemma)
    for recipe in module.RECIPES
}
