"""Write a real table that comes with scikit-learn: 569 tumours, 30 measurements and a diagnosis.

python examples/write_table.py tumours.csv
"""

from __future__ import annotations

import sys
from pathlib import Path

from sklearn.datasets import load_breast_cancer


def main() -> None:
    """Write the table to the file that the command line names."""
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
