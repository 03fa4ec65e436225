"""How llama.cpp encodes texts with the vocabularies of GGUF files: a digest for each.

    python -m tests.gguf.vocabularies FOLDER
    /tmp/llama/bin/python benchmarks/gguf/llama_cpp_tokens.py FOLDER

The second in the environment of llama.cpp (``benchmarks/peers/README.md``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of vocabularies, and texts.json")
    print_digests(parser.parse_args().folder)


def print_digests(folder: Path) -> None:
    import llama_cpp

    texts = json.loads((folder / "texts.json").read_text())
    for path in sorted(folder.glob("*.gguf")):
        model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        ids = [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts]
        digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]
        print(f'    "{path.stem}": "{digest}",')


if __name__ == "__main__":
    main()
