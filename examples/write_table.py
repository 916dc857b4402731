"""Write scikit-learn's table of 569 tumours with 30 measurements and a diagnosis to a CSV file.

python examples/write_table.py tumours.csv
"""

from __future__ import annotations

import sys
from pathlib import Path

from sklearn.datasets import load_breast_cancer


def main() -> None:
    """Write the table to the file given on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python write_table.py FILE.csv")
    data = load_breast_cancer(as_frame=True)
    table = data.data.rename(columns=lambda name: name.replace(" ", "_"))
    table["diagnosis"] = data.target.map({0: "malignant", 1: "benign"})
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)
    print(f"{path}: {len(table)} rows, {len(table.columns)} columns")


if __name__ == "__main__":
    main()
