"""What browsers are told of our pages: which scripts, styles and images may join them."""

from __future__ import annotations


def page_headers(*, styles: str, images: str) -> dict[str, str]:
    """Headers of a page whose scripts are files of this server, and that no other site frames.

    Args:
        styles: Sources of style sheets, as in ``Content-Security-Policy``.
        images: Sources of images.
    """
    policy = (
        "default-src 'none'",
        "script-src 'self'",
        f"style-src {styles}",
        f"img-src {images}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return {
        "content-security-policy": "; ".join(policy),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
