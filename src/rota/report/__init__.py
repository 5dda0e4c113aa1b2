"""Results for people and programs: tables, explanations, JSON."""
