"""The stores that are looked into, in the order in which a file that several have is theirs."""

from app.models.stores import gpt4all, hugging_face, jan, llama_cpp, lm_studio, ollama

STORES = (
    hugging_face.STORE,
    lm_studio.STORE,
    ollama.STORE,
    llama_cpp.STORE,
    jan.STORE,
    gpt4all.STORE,
)
KEYS = tuple(store.key for store in STORES)
