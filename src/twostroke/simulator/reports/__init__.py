"""Results for people and programs: tables, JSON, CSV and pages."""
