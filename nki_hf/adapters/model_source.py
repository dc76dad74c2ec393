"""Where a model comes from: a folder, the hub's cache or the hub. What is missing is said at once, and what code would run."""

from __future__ import annotations

import socket
import sys
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transformers import CONFIG_MAPPING, PretrainedConfig

__all__ = ["ModelAbsent", "UntrustedCode", "loading_options", "refused_code"]

_SECONDS = 5.0
"""How long a hub that does not answer is waited for; its own client tries for half a minute."""


class ModelAbsent(ValueError):
    """There is no such model here; `why` is the reason alone."""

    def __init__(self, model: str, why: str) -> None:
        self.why = why
        super().__init__(
            f"model={model!r} is not a folder with a config.json, a hub id that can be reached, or a model type of "
            f"Transformers: {why}."
        )


class UntrustedCode(ValueError):
    """The model needs code of its own, which may not run."""


def loading_options(model: str, *, trust_remote_code: bool) -> dict[str, Any]:
    """Keyword arguments of Transformers' `from_pretrained` for `model`, so that it neither waits for a hub nor asks a question.

    With `trust_remote_code` one line on standard error says which files of the model's own code run.

    Args:
      model: a folder with a config.json, or a hub id.
      trust_remote_code: True lets code that comes with the model run.

    Raises:
      ModelAbsent: it is not there, or its configuration cannot be read.
      UntrustedCode: it needs code of its own that is not trusted.
    """
    options: dict[str, Any] = {"local_files_only": _local(model), "trust_remote_code": trust_remote_code}
    try:
        config, _ = PretrainedConfig.get_config_dict(model, local_files_only=options["local_files_only"])
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ModelAbsent(model, str(error).strip().partition("\n")[0]) from error
    auto_map = config.get("auto_map") if isinstance(config, Mapping) else None
    if auto_map:
        if trust_remote_code:
            print(f"model={model!r}: running code that comes with it, {_files(auto_map)}", file=sys.stderr, flush=True)
        elif config.get("model_type") not in CONFIG_MAPPING:
            raise refused_code(model, auto_map)
    return options


def refused_code(model: str, auto_map: Any = None) -> UntrustedCode:
    """The error of a model whose own code is not trusted."""
    named = f" ({_files(auto_map)})" if auto_map else ""
    return UntrustedCode(
        f"model={model!r} needs code that comes with it{named}, which would run with all of your rights: read it, then say "
        "--trust-remote-code."
    )


def _files(auto_map: Any) -> str:
    """`configuration_own.py, modeling_own.py` of the classes that a configuration names, `owner/name: file` of another."""
    values = auto_map.values() if isinstance(auto_map, Mapping) else [auto_map]
    names = [name for value in values for name in (value if isinstance(value, list | tuple) else [value]) if name]
    return ", ".join(dict.fromkeys(f"{str(name).rpartition('.')[0].replace('--', ': ') or name}.py" for name in names))


def _local(model: str) -> bool:
    """True if nothing is asked of the hub: a folder, or a model in the hub's cache while the hub cannot be reached."""
    import huggingface_hub
    from huggingface_hub import constants

    folder = Path(model)
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise ModelAbsent(model, "it is there, and holds no file config.json")
        return True
    if model.count("/") != 1:
        raise ModelAbsent(model, "it does not exist, and is no hub id (owner/name)")
    cached = isinstance(huggingface_hub.try_to_load_from_cache(model, "config.json"), str)
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _unreachable(constants.ENDPOINT)
    if why and not cached:
        raise ModelAbsent(model, f"{why}, and the hub's cache does not hold it")
    return bool(why)


def _unreachable(endpoint: str) -> str:
    """Why no connection to the hub can be made, or an empty text; a proxy stands for what is behind it."""
    url = urlsplit(endpoint)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(url.hostname or ""):
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    found: list[str] = []

    def connect() -> None:
        try:
            port = url.port or (443 if url.scheme == "https" else 80)
            socket.create_connection((url.hostname or "", port), timeout=_SECONDS).close()
            found.append("")
        except (OSError, ValueError) as error:
            found.append(f" ({getattr(error, 'strerror', None) or error})")

    asking = threading.Thread(target=connect, daemon=True)  # the look-up of a name has no time limit of its own
    asking.start()
    asking.join(_SECONDS)
    why = found[0] if found else f" (no answer in {_SECONDS:g} s)"
    return f"{url.hostname or endpoint} cannot be reached{why}" if why else ""
