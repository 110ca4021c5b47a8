"""Traces as a collector gets them: received over OTLP from real workers, and drawn as trees."""
