"""Writes the files about the Rust packages in a wheel: `pagestream.cdx.json` and `LICENSE-THIRD-PARTY`.

Run it after each change of Cargo.lock: python .ci/third_party.py. With --check nothing is written, and the
exit code is 1 if a file is out of date. The same lock file always gives the same bytes: they have no time, no
path and no random number.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Wheels are built for these.
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
# Each package offers this choice, in the first of these files that it has.
CHOICE, TEXTS = "MIT", ("LICENSE-MIT", "LICENSE-MIT.md", "LICENSE.txt", "LICENSE")
RULE = "-" * 78


def metadata(target):
    """Returns the packages of the extension for a target, as cargo tells them."""
    command = [
        "cargo",
        "metadata",
        "--format-version=1",
        "--locked",
        "--features=python",
        f"--filter-platform={target}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def used(facts):
    """Returns packages by id, and whether their code is in the extension: macros only run in a build."""
    packages = {each["id"]: each for each in facts["packages"]}
    nodes = {each["id"]: each for each in facts["resolve"]["nodes"]}
    is_macro = {
        name: any("proc-macro" in each["kind"] for each in found["targets"])
        for name, found in packages.items()
    }
    linked = {}
    waiting = [(facts["resolve"]["root"], True)]
    while waiting:
        package, is_linked = waiting.pop()
        if linked.get(package, False) >= is_linked and package in linked:
            continue
        linked[package] = is_linked
        for dependency in nodes[package]["deps"]:
            kinds = {each["kind"] for each in dependency["dep_kinds"]} - {"dev"}
            if kinds:
                stays = is_linked and None in kinds and not is_macro[dependency["pkg"]]
                waiting.append((dependency["pkg"], stays))
    return {package: (packages[package], nodes[package], is_linked) for package, is_linked in linked.items()}


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def bill(found, checksums):
    """Returns the bill of materials (CycloneDX 1.5)."""
    components, dependencies, own = [], [], None
    names = {identity: purl(package) for identity, (package, _, _) in found.items()}
    for package, node, is_linked in found.values():
        component = {
            "type": "library",
            "bom-ref": purl(package),
            "name": package["name"],
            "version": package["version"],
            "licenses": [{"expression": package["license"].replace("/", " OR ")}],
            "purl": purl(package),
        }
        if package["source"] is None:
            own = component
        else:
            component["scope"] = "required" if is_linked else "excluded"
            component["hashes"] = [
                {"alg": "SHA-256", "content": checksums[package["name"], package["version"]]}
            ]
            if package["repository"]:
                component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
            components.append(component)
        kinds = {each["pkg"]: {kind["kind"] for kind in each["dep_kinds"]} - {"dev"} for each in node["deps"]}
        on = sorted(names[each] for each, kind in kinds.items() if kind and each in names)
        dependencies.append({"ref": purl(package), "dependsOn": on})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": sorted(components, key=lambda each: each["bom-ref"]),
        "dependencies": sorted(dependencies, key=lambda each: each["ref"]),
    }


def license_text(package):
    """Returns the text of a package's MIT licence."""
    folder = Path(package["manifest_path"]).parent
    texts = [folder / name for name in TEXTS if (folder / name).exists()]
    if CHOICE not in re.split(r" OR |/", package["license"]) or not texts:
        message = f"{package['name']} {package['version']} is under {package['license']}: include that text"
        raise SystemExit(message)
    lines = texts[0].read_text(encoding="utf-8").strip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def licenses(found):
    """Returns the text of all licences: of the packages in the extension, and of Rust's standard library."""
    parts = [
        "The native extension contains this software. pagestream is under LICENSE-MIT or LICENSE-APACHE.\n"
    ]
    linked = [package for package, _, is_linked in found.values() if is_linked and package["source"]]
    for package in sorted(linked, key=lambda each: (each["name"], each["version"])):
        title = f"{package['name']} {package['version']}, used under {CHOICE}"
        parts.append(f"{RULE}\n{title}\n{RULE}\n\n{license_text(package)}\n")
    parts.append((ROOT / ".ci/licenses/rust-standard-library.txt").read_text(encoding="utf-8"))
    return "\n".join(parts)


def made():
    """Returns the content of both files, by name."""
    found = {}
    for target in TARGETS:
        found |= used(metadata(target))
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}
    return {
        "pagestream.cdx.json": json.dumps(bill(found, checksums), indent=1) + "\n",
        "LICENSE-THIRD-PARTY": licenses(found),
    }


def main():
    stale = {
        name: text
        for name, text in made().items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text
    }
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"{name} is out of date: python {os.path.relpath(__file__)} writes it")
        return int(bool(stale))
    for name, text in stale.items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
