"""A real NFS client, versions 3 and 4.2. All checks of `support.nfs_checks` run in one guest."""

import json

import pytest

from support import nfs_checks
from support.nfs_guest import outcome

# The first test waits for the guest, which boots before all tests: three minutes, or ten on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
SECONDS = 900
# Each check runs on the mounts of its kind.
CASES = [(name, mount) for name in nfs_checks.CHECKS for mount in nfs_checks.mounts_of(name)]
CASES += nfs_checks.OUTAGES


@pytest.fixture(scope="module")
def outcomes(request):
    folder, console = outcome(request.config, SECONDS)
    path = folder / "results"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    kernel = (folder / "kernel").read_text(errors="replace")
    return {(each["check"], each["mount"]): each["failed"] for each in found}, console, kernel


@pytest.mark.parametrize(("name", "mount"), CASES, ids=[f"{mount}: {name}" for name, mount in CASES])
def test_nfs(outcomes, name, mount):
    found, console, kernel = outcomes
    assert (name, mount) in found, f"the guest ended before this check; its console:\n{console[-5000:]}"
    failed = found[name, mount]
    assert failed is None, f"{failed}\n{console[-2000:]}\nThe guest's kernel says:\n{kernel[-5000:]}"
