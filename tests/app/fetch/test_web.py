"""Addresses: what errors mean, where redirects lead, and who is shown a token."""

import http.client
import ssl
import threading
from email.utils import formatdate
from urllib.error import URLError

import pytest

from app.transfer.errors import FetchError, retry_after, web_error
from app.transfer.web import Stop, Stopped, Web
from tests.support.file_server import File

TOKEN = {"Authorization": "Bearer secret"}


def test_a_token_is_shown_to_its_host_and_to_no_other(server):
    server.files["/here"] = File(redirect=server.url("/there"))
    server.files["/there"] = File(redirect=server.url("/elsewhere", host="localhost"))
    server.files["/elsewhere"] = File(b"found")
    answer = Web(Stop()).get(server.url("/here"), TOKEN)
    assert answer.read() == b"found"
    answer.close()
    shown = {path: headers.get("authorization") for path, headers in server.asked}
    assert shown == {"/here": "Bearer secret", "/there": "Bearer secret", "/elsewhere": None}


@pytest.mark.parametrize(
    ("target", "said"), [("file:///etc/passwd", "status 302"), ("ftp://127.0.0.1/x", "of ftp:")]
)
def test_a_redirect_leads_to_the_web_alone(server, target, said):
    server.files["/here"] = File(redirect=target)
    with pytest.raises(FetchError, match=said):
        Web(Stop()).get(server.url("/here"))


def test_redirects_in_a_circle_end(server):
    server.files["/here"] = File(redirect=server.url("/here"))
    with pytest.raises(FetchError, match="status 302"):
        Web(Stop()).get(server.url("/here"))


def test_a_server_without_encryption_is_no_https_server(server):
    with pytest.raises(FetchError, match="cannot be reached safely"):
        Web(Stop()).get(server.url("/here").replace("http:", "https:"))


def test_a_certificate_that_is_not_trusted_is_told_with_what_to_do():
    cause = ssl.SSLCertVerificationError("certificate verify failed")
    cause.verify_message = "self-signed certificate"
    said = str(web_error(URLError(cause), "https://u:p@models.example/x"))
    assert "models.example" in said and "self-signed certificate" in said and "SSL_CERT_FILE" in said
    assert "u:p" not in said


@pytest.mark.parametrize(
    ("error", "again", "unreachable"),
    [
        (ConnectionResetError(), True, False),
        (http.client.IncompleteRead(b""), True, False),
        (http.client.RemoteDisconnected(), True, False),
        (TimeoutError(), False, True),
        (OSError("Tunnel connection failed: 407 Proxy Authentication Required"), False, True),
    ],
)
def test_what_may_work_at_once_is_told_from_what_will_not(error, again, unreachable):
    told = web_error(error, "https://models.example/x")
    assert (told.again, told.unreachable) == (again, unreachable)
    assert "models.example" in str(told) and ";" in str(told)


def test_retry_after_is_a_number_or_a_date():
    assert retry_after("7") == 7.0
    assert retry_after("-1") == 0.0
    assert retry_after(formatdate(0, usegmt=True)) == 0.0
    assert retry_after("soon") is None
    assert retry_after(None) is None


def test_what_waits_wakes_up_when_told_to_stop():
    stop = Stop()
    ended = threading.Event()

    def wait():
        with pytest.raises(Stopped):
            stop.wait(1000)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    stop.set()
    assert ended.wait(60)
    with pytest.raises(Stopped):
        Web(stop).get("http://127.0.0.1:1/")
