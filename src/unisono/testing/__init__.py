"""Checks for authors of methods: ``check_method`` runs them, ``parametrize_with_checks`` makes them tests."""

from unisono.testing.checks import CHECKS
from unisono.testing.method_checks import CheckResult, check_method, parametrize_with_checks
from unisono.testing.tiny import TinyFederation

__all__ = ["CHECKS", "CheckResult", "TinyFederation", "check_method", "parametrize_with_checks"]
