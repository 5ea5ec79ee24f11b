"""What stands in a Markdown page."""


def tables(path):
    """A document's tables: the headings' cells, and a list of cells a row."""
    found, rows = [], []
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").replace("\\|", "\0").split("|")])
        elif rows:
            found.append((rows[0], rows[2:]))
            rows = []
    return found
