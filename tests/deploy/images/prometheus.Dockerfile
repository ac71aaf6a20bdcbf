# Debian's Prometheus under the name of the image prom/prometheus.
ARG ROOT
FROM ${ROOT}
RUN mkdir -p /etc/prometheus /prometheus && chown 65534:65534 /prometheus
USER 65534
VOLUME /prometheus
WORKDIR /prometheus
EXPOSE 9090
ENTRYPOINT ["prometheus"]
