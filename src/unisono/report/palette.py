"""Colours that remain distinct to the colour-blind, on white and on black.

They started as Okabe and Ito, "Color Universal Design" (2008), and Paul Tol's "muted" scheme (2021), and were moved apart until
every two differ by 25 in CIELAB to people without red or green cones too. Lines also differ by marker, and every chart names
what the pointer is on, so that no colour stands alone.

No palette holds many such colours. More things than these lie on a scale, van der Walt and Smith's "viridis" (2015), whose
lightness rises evenly to everybody; the end that would fade into the page is cut off.
"""

from __future__ import annotations

LIGHT = ("#0A67CF", "#CF3D0D", "#27C39E", "#8A659D", "#EFA200", "#64AFFF", "#620077", "#73AF5E", "#0D04B0", "#5F5A53")
DARK = ("#3B8CDD", "#FF9A21", "#4EE9A1", "#C06A9E", "#D7EE7C", "#85C8FF", "#AE6A64", "#AD9E50", "#6769FF", "#BADBDF")
SCALE_LIGHT = ("#440154", "#482878", "#3e4a89", "#30698e", "#25848e", "#1fa088", "#38b977", "#73d056", "#bddf26")
SCALE_DARK = ("#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725")
