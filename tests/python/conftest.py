"""Fixtures for the published client's own tests: a client of the node that the environment names."""

import os

import pytest_asyncio
from queen import Queen


@pytest_asyncio.fixture
async def client():
    """A client of QUEEN_SERVER_URL, closed after the test; QUEEN_TEST_FORMS switches every binary form on."""
    forms = bool(os.environ.get("QUEEN_TEST_FORMS"))
    queen = Queen(
        os.environ["QUEEN_SERVER_URL"],
        binary_push=forms,
        push_compression=forms,
        framed_pop=forms,
    )
    try:
        yield queen
    finally:
        await queen.close()
