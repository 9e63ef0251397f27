"""Runs as pages: one self-contained HTML file that opens from disk, and the look that all pages share.

A page is a plain JSON document. ``blocks`` makes its parts (line charts, stacked columns, tables, facts, code), ``page``
turns the document into HTML, and the scripts in ``look/`` draw it, in light and dark, on a desk or a phone::

    from unisono.report.blocks import Series, document, lines, section, table
    from unisono.report.page import render

    loss = lines("Loss", "round", "loss", [Series("simclr", [1, 2, 3], [5.1, 4.2, 3.9])])
    scores = table("Scores", ["method", "linear"], [["simclr", 0.71]])
    html = render(document("Two methods", "fashion-mini, 50 clients", [section("curves", "Curves", [loss, scores])]))
"""
