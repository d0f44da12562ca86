FROM golang:1.26.8 AS build
ARG VERSION=devel
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -X main.release=$VERSION" -o /weir ./cmd/server
RUN deploy/notices >/NOTICES
# Gateways of Envoy start this program; called so, weir takes their variables.
RUN mkdir -p /links/bin && ln -s /weir /links/bin/ratelimit

FROM scratch
# Of the authorities that may vouch for Memcached.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /weir /weir
COPY --from=build /links/ /
COPY --from=build /src/LICENSE /NOTICES /
# In a container nobody else reaches loopback.
ENV WEIR_LISTEN=:8080
EXPOSE 8080
# By number: Kubernetes can't tell that a name isn't root's.
USER 65534:65534
HEALTHCHECK --interval=5s --timeout=3s CMD ["/weir", "-healthcheck"]
ENTRYPOINT ["/weir"]
