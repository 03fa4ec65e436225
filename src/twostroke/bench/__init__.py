"""Load and its measurement: workloads, a client for any OpenAI-compatible server, metrics, reports.
No torch.
"""
