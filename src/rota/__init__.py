"""rota: the collective-communication stack of AWS Trainium's runtime, open."""
