"""The gateway's settings: one YAML file, every default written here with its reason. See deployments/gateway.yaml."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from client.api import parse_url
from client.types import VlmError
from python_backends.validation import explain
from python_backends.yaml_file import read_mapping

KEYS_VARIABLE = "TVLM_API_KEYS"
_DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
Name = Annotated[str, Field(min_length=1, max_length=128)]


class SettingsError(ValueError):
    """The gateway can't start with these settings; the message is one line that says which and why."""


class GatewaySettings(BaseModel):
    """Everything that an operator can set. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"  # another address needs keys, or allow_no_keys
    port: int = Field(8080, ge=0, le=65535)
    servers: tuple[str, ...] = Field(("grpc://localhost:8001",), min_length=1, max_length=64)
    model_names: tuple[Name, ...] = Field(("vlm",), min_length=1, max_length=64)  # accepted in requests

    api_keys_file: Path | None = None  # lines `SHA256 NAME`, as sha256sum prints them
    allow_no_keys: bool = False  # serve anybody, on any address
    requests_per_minute: int | None = Field(None, ge=1)  # a key; None: unlimited
    tokens_per_minute: int | None = Field(None, ge=1)  # a key, prompt and answer together
    concurrent_requests: int = Field(256, ge=1)  # a key; as many as the router queues of one class
    cors_origins: tuple[str, ...] = ()  # none: browsers may call only from the gateway's own pages

    # http(s) images are fetched from these hosts and their subdomains, HOST or HOST:PORT; none: all are refused
    allowed_media_domains: tuple[str, ...] = ()
    allowed_media_networks: tuple[str, ...] = ()  # addresses that may be fetched from although they are not public
    remote_images: int = Field(8, ge=0)  # of one request; the router's default images_per_request
    remote_timeout_s: float = Field(10.0, gt=0)  # one image, redirects included
    image_bytes_mb: float = Field(20.0, gt=0)  # one remote image; the router's default limit

    body_mb: float = Field(32.0, gt=0)  # one 20 MB picture in base64 and some text
    text_mb: float = Field(1.0, gt=0, le=8)  # of a body, without the pictures in it; the router's text_bytes_mb
    bodies_mb: float = Field(256.0, gt=0)  # all bodies that are being read or waited on; more are told to come again
    header_kb: int = Field(32, ge=1)  # request line and headers
    header_timeout_s: float = Field(10.0, gt=0)  # from connecting, or the first byte, to the last header
    body_timeout_s: float = Field(60.0, gt=0)
    idle_timeout_s: float = Field(30.0, gt=0)  # a kept connection without a request
    write_timeout_s: float = Field(30.0, gt=0)  # a client that reads nothing for so long is gone
    connections: int = Field(4096, ge=16)  # over it, the connection that idles longest is closed
    request_timeout_s: float = Field(600.0, gt=0)  # the whole answer, when the request names no deadline_ms
    grace_s: float = Field(10.0, ge=0)  # for running requests when told to stop

    @field_validator("allowed_media_domains")
    @classmethod
    def _domains(cls, domains: tuple[str, ...]) -> tuple[str, ...]:
        for domain in domains:
            if not _DOMAIN.fullmatch(domain):
                raise ValueError(f"expected HOST or HOST:PORT, not {domain!r}")
        return domains

    @field_validator("allowed_media_networks")
    @classmethod
    def _networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ipaddress.ip_network(network)  # its own ValueError says what is wrong
        return networks

    @field_validator("servers")
    @classmethod
    def _grpc(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for url in servers:
            try:
                scheme, _ = parse_url(url)
            except VlmError as error:
                raise ValueError(error.message) from None
            if scheme != "grpc":
                raise ValueError(f"the gateway speaks gRPC to its servers: grpc://host:port, not {url}")
        if len(set(servers)) != len(servers):
            raise ValueError("a server is named twice")
        return servers

    @property
    def max_body_bytes(self) -> int:
        """`body_mb` in bytes."""
        return int(self.body_mb * 1_000_000)

    @property
    def max_text_bytes(self) -> int:
        """`text_mb` in bytes."""
        return int(self.text_mb * 1_000_000)

    @property
    def max_image_bytes(self) -> int:
        """`image_bytes_mb` in bytes."""
        return int(self.image_bytes_mb * 1_000_000)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def load_settings(path: Path | None, **changes: Any) -> GatewaySettings:
    """The settings of a YAML file (None: the defaults), with those of the command line on top (None: not given).

    Raises:
        SettingsError: the file can't be read, or a key or value is not acceptable.
    """
    read = {} if path is None else read_mapping(path, "gateway settings file", SettingsError)
    values = {**read, **{name: value for name, value in changes.items() if value is not None}}
    try:
        settings = GatewaySettings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(f"gateway settings: {explain(error, GatewaySettings)}") from None
    if path is not None and settings.api_keys_file is not None and not settings.api_keys_file.is_absolute():
        return settings.model_copy(update={"api_keys_file": path.resolve().parent / settings.api_keys_file})
    return settings


def keys_from_environment() -> tuple[str, ...]:
    """The keys in TVLM_API_KEYS, separated by commas."""
    return tuple(key for key in os.environ.get(KEYS_VARIABLE, "").replace(",", " ").split() if key)
