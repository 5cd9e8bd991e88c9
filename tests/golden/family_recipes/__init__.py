"""The table of tiny models whose outputs tests/golden/families keeps."""

from tests.golden.family_recipes import gemma, llama_like, qwen
from tests.golden.family_recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for module in (llama_like, qwen, gemma) for recipe in module.RECIPES
}
