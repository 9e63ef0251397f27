"""Reports: one self-contained HTML file per run that opens from disk, and the assets that all pages share.

A page is a plain JSON document. ``blocks`` makes its parts (line charts, stacked columns, tables, facts, code), ``html``
turns the document into HTML, and the scripts in ``assets/`` draw it, in light and dark, on a computer or a phone::

    from unisono.report.blocks import Series, document, lines, section, table
    from unisono.report.html import render

    loss = lines("Loss", "round", "loss", [Series("simclr", [1, 2, 3], [5.1, 4.2, 3.9])])
    scores = table("Scores", ["method", "linear"], [["simclr", 0.71]])
    html = render(document("Two methods", "fashion-mini, 50 clients", [section("curves", "Curves", [loss, scores])]))
"""
