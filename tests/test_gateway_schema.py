"""What the OpenAPI document allows, and what it doesn't, sent to a gateway: never a 5xx, never an undocumented answer.

Longer:  st run http://localhost:8080/openapi.json --max-time 600
"""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.app import create_app
from gateway.settings import GatewaySettings
from tests.gateways import RunningGateway

pytestmark = pytest.mark.server

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

schema = schemathesis.openapi.from_dict(create_app(GatewaySettings()).openapi())


@schema.parametrize()
@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_operation_answers_as_documented(echo_gateway: RunningGateway, case: schemathesis.Case) -> None:
    case.call_and_validate(base_url=echo_gateway.url, timeout=30, checks=CHECKS)
