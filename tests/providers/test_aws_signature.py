"""Signatures of requests to AWS, by the published example and by botocore where it is installed."""

from datetime import UTC, datetime

import pytest
from yarl import URL

from retinue.providers.bedrock.signature import Credentials, sign

MOMENT = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
EXAMPLE = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")


def test_the_published_example_has_its_signature() -> None:
    """`get-vanilla` of the test suite that AWS publishes for Signature Version 4."""
    headers = sign(
        EXAMPLE,
        method="GET",
        url=URL("https://example.amazonaws.com/"),
        body=b"",
        region="us-east-1",
        service="service",
        now=MOMENT,
    )

    assert headers == {
        "X-Amz-Date": "20150830T123600Z",
        "Authorization": (
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
            "SignedHeaders=host;x-amz-date, "
            "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
        ),
    }


@pytest.mark.parametrize("token", ["", "a session token/with+signs=="])
@pytest.mark.parametrize(
    "path",
    [
        "/model/m/converse-stream",
        "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream",
        "/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A123456789012%3Ainference-profile%2Fx/converse",
        "/foundation-models?byOutputModality=TEXT&a=%20b",
    ],
)
def test_botocore_signs_in_the_same_way(token: str, path: str) -> None:
    auth = pytest.importorskip("botocore.auth", reason="make vendors installs it")
    request_class = pytest.importorskip("botocore.awsrequest").AWSRequest
    credentials_class = pytest.importorskip("botocore.credentials").Credentials
    address, body = f"https://bedrock-runtime.eu-west-1.amazonaws.com{path}", b'{"messages":[]}'
    theirs = request_class("POST", address, headers={"Content-Type": "application/json"}, data=body)
    credentials = credentials_class(EXAMPLE.key_id, EXAMPLE.secret, token or None)
    auth.SigV4Auth(credentials, "bedrock", "eu-west-1").add_auth(theirs)

    ours = sign(
        Credentials(EXAMPLE.key_id, EXAMPLE.secret, token),
        method="POST",
        url=URL(address, encoded=True),
        body=body,
        region="eu-west-1",
        headers={"Content-Type": "application/json"},
        now=datetime.strptime(theirs.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC),
    )

    assert ours["Authorization"] == theirs.headers["Authorization"]
    assert ours.get("X-Amz-Security-Token") == theirs.headers.get("X-Amz-Security-Token")
