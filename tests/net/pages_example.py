"""A self-signed certificate for pages.example and its key, for the servers of these tests only."""

import ssl
import tempfile
from pathlib import Path

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBoDCCAUegAwIBAgIUfsckPYnBK420RAAKJX1DBLAazyEwCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNcGFnZXMuZXhhbXBsZTAgFw0yNjExMTUxMTMyMjdaGA8yMTI2
MTAyMjExMzIyN1owGDEWMBQGA1UEAwwNcGFnZXMuZXhhbXBsZTBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABJgmwyJyn+vC6ZHsGjaI0MlIEMVnd84J+MZU9M/QuWeT
lrKGZEvWe2jqhJPy4GCePjHJ2/9S+0rbiKWBexgxnQGjbTBrMB0GA1UdDgQWBBTY
L6brR72PExsJ6sDQRhbyWPTkUTAfBgNVHSMEGDAWgBTYL6brR72PExsJ6sDQRhby
WPTkUTAPBgNVHRMBAf8EBTADAQH/MBgGA1UdEQQRMA+CDXBhZ2VzLmV4YW1wbGUw
CgYIKoZIzj0EAwIDRwAwRAIgdVYhEyeAaqjXul/1+lF6cXVbeouy1teRccNKGXCi
rPYCIC0UqUKEM7bWNJla6eY5vZ7ArLDRg4i4fCOjr6dMZPjD
-----END CERTIFICATE-----
"""

KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg8kKzx1chapeAQW43
UUBBfVgtDLxy4aMzQnGDDlrs08GhRANCAASYJsMicp/rwumR7Bo2iNDJSBDFZ3fO
CfjGVPTP0Llnk5ayhmRL1nto6oST8uBgnj4xydv/UvtK24ilgXsYMZ0B
-----END PRIVATE KEY-----
"""


def server_tls() -> ssl.SSLContext:
    """The TLS context of a server for pages.example."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        both = Path(folder, "both.pem")
        both.write_text(KEY + CERTIFICATE)
        context.load_cert_chain(both)
    return context


def client_tls() -> ssl.SSLContext:
    """The TLS context of a client that trusts this certificate and checks the host name."""
    return ssl.create_default_context(cadata=CERTIFICATE)
