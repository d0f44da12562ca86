FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags=-s -o /weir ./cmd/server

# Alpine for its wget, which the health check needs.
FROM alpine:3
COPY --from=build /weir /usr/local/bin/weir
# In a container nobody else reaches loopback.
ENV WEIR_LISTEN=:8080
EXPOSE 8080
USER nobody
HEALTHCHECK --interval=5s --timeout=2s CMD wget -q -O /dev/null http://127.0.0.1:8080/healthz
ENTRYPOINT ["weir"]
