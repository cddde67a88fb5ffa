"""Debian's Chromium, headless, for pages that people open."""

import os
import shutil
from contextlib import contextmanager

import pytest

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def unavailable(reason):
    """Skip, or fail where the tests have to be complete."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def chromium():
    """Start a browser with a new profile."""
    try:
        from playwright import sync_api
    except ModuleNotFoundError:
        unavailable("there is no Playwright: pip install playwright")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        unavailable("there is no Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page that is open, and what it said and asked for."""

    def __init__(self, browser, path, *, scheme="light", width=1200, height=900):
        self.messages, self.requests, self.dialogs = [], [], []
        self.context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": height}
        )
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_load_state("networkidle")

    def _dismiss(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()
