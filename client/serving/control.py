"""Loading and unloading models of a running server, which only we can: the repository API asks for a secret."""

from __future__ import annotations

import contextlib
import json
import secrets

import urllib3

from client.serving.errors import ServeError

_HEADER = "tvlm-control"
_APIS = "model-repository"
_UNLOAD_S = 10
_DRAINING = "draining"  # so named that Triton's log tells why it can't be loaded


class RepositoryControl:
    """Triton's repository API. The secret is made anew for each server.

    It is an argument of tritonserver, so whoever may read this machine's process list can read it.
    """

    def __init__(self, http: str) -> None:
        """`http`: the server's URL."""
        self._http = http
        self._secret = secrets.token_hex(16)

    @property
    def options(self) -> list[str]:
        """tritonserver's options: models are loaded and unloaded by request, and not by strangers."""
        return [
            "--model-control-mode=explicit",
            "--load-model=*",
            f"--http-restricted-api={_APIS}:{_HEADER}={self._secret}",
            f"--grpc-restricted-protocol={_APIS}:{_HEADER}={self._secret}",
        ]

    def not_loaded(self) -> list[str]:
        """The models that could not be loaded when the server started; none when it does not say."""
        try:
            answer = self._ask("index", _UNLOAD_S)
        except ServeError:
            return []
        return sorted({model["name"] for model in json.loads(answer) if model.get("state") != "READY"})

    def load(self, model: str, timeout_s: float) -> None:
        """Load a model that is not loaded (ServeError)."""
        self._post(model, "load", timeout_s)

    def reload(self, model: str, timeout_s: float) -> None:
        """Unload a model, dead stub or not, and load it again (ServeError when it does not come back in time).

        Ensembles with it go and come with it. The unload comes first, for until it is loaded again it is not ready.
        """
        self._post(model, "unload", _UNLOAD_S)
        self.load(model, timeout_s)

    def make_not_ready(self) -> None:
        """Turn /v2/health/ready for good, while all models go on.

        Triton has no switch for it. It counts a model as missing that could not be loaded (one that was unloaded it
        does not): so a model is asked for that nothing can load.
        """
        tensor = {"name": "none", "data_type": "TYPE_BOOL", "dims": [1]}
        config = {"backend": _DRAINING, "input": [tensor], "output": [tensor]}
        parameters = {"config": json.dumps(config), "file:1/none": ""}
        with contextlib.suppress(ServeError):
            self._post(_DRAINING, "load", _UNLOAD_S, {"parameters": parameters})

    def _post(self, model: str, action: str, timeout_s: float, body: object = None) -> None:
        try:
            self._ask(f"models/{model}/{action}", timeout_s, body)
        except ServeError as error:
            raise ServeError(f"{action} of model {model}: {error}") from error

    def _ask(self, path: str, timeout_s: float, body: object = None) -> bytes:
        url = f"{self._http}/v2/repository/{path}"
        headers = {"Connection": "close", _HEADER: self._secret}
        try:
            answer = urllib3.request("POST", url, json=body or {}, headers=headers, timeout=timeout_s, retries=False)
        except urllib3.exceptions.HTTPError as error:
            raise ServeError(str(error)) from error
        if answer.status != 200:
            try:
                reason = json.loads(answer.data)["error"]
            except (ValueError, KeyError):
                reason = f"HTTP status {answer.status}"
            raise ServeError(reason)
        return answer.data
