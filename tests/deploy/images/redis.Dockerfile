# Debian's Redis under the name of the image redis.
ARG ROOT
FROM ${ROOT}
RUN mkdir /data && chown 999:999 /data
VOLUME /data
WORKDIR /data
EXPOSE 6379
# The image lets clients of other machines in, which Redis itself does not without a password.
CMD ["redis-server", "--protected-mode", "no"]
