"""Minimal Excel workbooks built by hand, so that tests control every cell, including wrong ones."""

from __future__ import annotations

import io
import zipfile
from datetime import date, datetime
from typing import Any
from xml.sax.saxutils import escape

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
# Error values of formulas.
_MISTAKES = ("#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!")
# Style 1 is a date, style 2 a date with its time.
_STYLES = f"""<styleSheet xmlns="{_MAIN}"><numFmts count="1"><numFmt numFmtId="164" formatCode="yyyy\\-mm\\-dd hh:mm"/>
</numFmts><fonts count="1"><font/></fonts><fills count="1"><fill/></fills><borders count="1"><border/></borders>
<cellStyleXfs count="1"><xf/></cellStyleXfs><cellXfs count="3"><xf numFmtId="0"/><xf numFmtId="14"/>
<xf numFmtId="164"/></cellXfs></styleSheet>"""


def _cell(place: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, datetime | date):
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        serial = (moment - datetime(1899, 12, 30)).total_seconds() / 86_400
        return f'<c r="{place}" s="{2 if isinstance(value, datetime) else 1}"><v>{serial!r}</v></c>'
    if isinstance(value, int | float):
        return f'<c r="{place}"><v>{value!r}</v></c>'
    if value in _MISTAKES:
        return f'<c r="{place}" t="e"><v>{value}</v></c>'
    return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'


def _column(index: int) -> str:
    letters = ""
    while index >= 0:
        index, letter = index // 26 - 1, index % 26
        letters = chr(65 + letter) + letters
    return letters


def sheet(rows: list[list[Any]], first: int = 1) -> str:
    """Return a sheet whose rows begin at row ``first``."""
    lines = []
    for number, row in enumerate(rows, start=first):
        cells = "".join(_cell(f"{_column(index)}{number}", value) for index, value in enumerate(row))
        lines.append(f'<row r="{number}">{cells}</row>')
    return f'<worksheet xmlns="{_MAIN}"><sheetData>{"".join(lines)}</sheetData></worksheet>'


def workbook(sheets: dict[str, str], **more: bytes) -> bytes:
    """Return a workbook of named sheets; ``more`` adds or replaces files in it."""
    numbered = list(enumerate(sheets.items(), start=1))
    listed = "".join(f'<sheet name="{name}" sheetId="{n}" r:id="rId{n}"/>' for n, (name, _) in numbered)
    related = "".join(
        f'<Relationship Id="rId{n}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{n}.xml"/>' for n, _ in numbered
    )
    types = "".join(
        f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{_PACKAGE}.worksheet+xml"/>'
        for n, _ in numbered
    )
    files: dict[str, str | bytes] = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_PACKAGE}.sheet.main+xml"/>{types}'
        f'<Override PartName="/xl/styles.xml" ContentType="{_PACKAGE}.styles+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="rId1" Type="{_OFFICE}/officeDocument" '
        'Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_RELATIONS}">{related}<Relationship Id="rId99" '
        f'Type="{_OFFICE}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": _STYLES,
    }
    files |= {f"xl/worksheets/sheet{n}.xml": text for n, (_, text) in numbered} | more
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
