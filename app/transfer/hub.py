"""`hf:OWNER/REPO[:QUANT]`: repositories of Hugging Face or of a mirror, by the rules of `huggingface_hub`.

Its token, endpoint (HF_ENDPOINT) and cache count: what another program has fetched there is not fetched
again. The library says what a repository holds and who may read it; the bytes come through this room's own
download, which can be paused and checks what arrives.
"""

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from app.transfer.errors import FetchError, retry_after, status_error, web_error
from app.transfer.plan import Asked, Licence, ModelFile, Plan, RemoteFile
from app.transfer.quantisation import Choice, choices, pick, with_a_smaller

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

_TIMEOUT = 30.0
_LOGIN = "set HF_TOKEN to a token of yours, or run: hf auth login"
_OPEN = (
    "apache-2.0",
    "mit",
    "bsd",
    "cc0",
    "cc-by-4.0",
    "cc-by-sa",
    "unlicense",
    "isc",
    "mpl-2.0",
)
"""Beginnings of the names of licences that ask nobody for consent."""


class Hub:
    """The source behind `hf:`."""

    def plan(self, what: str, asked: Asked) -> Plan:
        """The files of one quantisation of a repository."""
        name, _, quantisation = what.partition(":")
        if name.count("/") != 1 or not all(name.split("/")):
            raise FetchError(
                f"hf:{what}: write hf:OWNER/REPO or hf:OWNER/REPO:QUANT, as in hf:Qwen/Qwen3-4B-GGUF:Q4_K_M"
            )
        info = _info(name)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        choice = pick(choices(sizes), quantisation, asked.free_memory, f"hf:{name}")
        if quantisation and asked.fits is not None:
            choice = with_a_smaller(choice, choices(sizes), asked.fits, f"hf:{name}")
        licence = _licence(info, name)
        files = tuple(_remote_file(info, name, path) for path in choice.paths)
        present = _in_cache(name, info.sha, choice)
        return Plan(
            what=f"hf:{name}:{choice.label}",
            title=f"{name.split('/')[1].removesuffix('-GGUF')} {choice.label}",
            source=f"Hugging Face, {name}",
            licence=licence,
            files=files,
            models=tuple(ModelFile(file.name, file.size) for file in files),
            folder=PurePath(*name.split("/")),
            present=present,
            notes=choice.notes,
        )


def _info(name: str) -> "ModelInfo":
    """What the hub says of a repository and its files."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    page = f"{constants.ENDPOINT}/{name}"
    try:
        return HfApi(library_name="tui-chat").model_info(name, files_metadata=True, timeout=_TIMEOUT)
    except HFValidationError as error:
        raise FetchError(f"hf:{name} is no name of a repository; write hf:OWNER/REPO") from error
    except OfflineModeIsEnabled as error:
        raise FetchError("HF_HUB_OFFLINE is set, so Hugging Face is not asked; unset it to fetch") from error
    except GatedRepoError as error:
        raise FetchError(f"{name} asks for consent: agree to its licence at {page}, then {_LOGIN}") from error
    except RepositoryNotFoundError as error:
        raise FetchError(
            f"there is no repository {page}, or it is private; check the name, or {_LOGIN}"
        ) from error
    except HfHubHTTPError as error:
        answer = error.response
        wait = retry_after(answer.headers.get("Retry-After"))
        raise status_error(answer.status_code, page, _LOGIN, wait) from error
    except Exception as error:
        raise web_error(_cause(error), page, _LOGIN) from error


def _cause(error: BaseException) -> Exception:
    """What the operating system said beneath the layers of an HTTP library; else the error itself.

    The library has changed its HTTP client twice: its own exceptions are not asked for.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen
        seen = seen.__cause__ or seen.__context__
    if "timeout" in type(error).__name__.lower():
        return TimeoutError(str(error))
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def _licence(info: "ModelInfo", name: str) -> Licence:
    from huggingface_hub import constants

    card: Any = info.card_data or {}
    label = card.get("license") or ""
    label = ", ".join(label) if isinstance(label, list) else str(label)
    shown = str(card.get("license_name") or label) or Licence().name
    link = str(card.get("license_link") or f"{constants.ENDPOINT}/{name}")
    free = label.lower().startswith(_OPEN)
    return Licence(shown, link, consent=bool(info.gated) or (bool(label) and not free))


def _remote_file(info: "ModelInfo", name: str, path: str) -> RemoteFile:
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    file = next(file for file in info.siblings or () if file.rfilename == path)
    headers = build_hf_headers(library_name="tui-chat")
    token = {key: value for key, value in headers.items() if key.lower() == "authorization"}
    return RemoteFile(
        url=hf_hub_url(name, path, revision=info.sha),
        name=PurePath(path).name,
        size=file.size,
        sha256=file.lfs.sha256 if file.lfs else None,
        headers=token,
        login=f"agree to its licence at {constants.ENDPOINT}/{name}, then {_LOGIN}" if info.gated else _LOGIN,
    )


def _in_cache(name: str, revision: str | None, choice: Choice) -> tuple[Path, ...]:
    """The files in the hub's own cache, if all of them are there."""
    from huggingface_hub import try_to_load_from_cache

    found = [try_to_load_from_cache(name, path, revision=revision) for path in choice.paths]
    return (
        tuple(Path(path) for path in found if isinstance(path, str))
        if all(isinstance(path, str) for path in found)
        else ()
    )
