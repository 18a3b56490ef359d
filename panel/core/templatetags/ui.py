"""Template tags and filters of the design system."""

from django import template

register = template.Library()
