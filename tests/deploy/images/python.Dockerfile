# Debian's Python under the name of the image python:…-slim.
ARG ROOT
FROM ${ROOT}
# The machine may reach its package index through a server whose certificate only this machine knows.
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
