ARG GO_IMAGE=golang:1.26.8-bookworm

FROM ${GO_IMAGE} AS build
WORKDIR /src
# The folder of the Go module whose program the image runs. A module below the root imports packages of the root.
ARG MODULE=.
# The sources of Go modules. Without a value Go uses its default.
ARG GOPROXY GOSUMDB GONOSUMDB GOPRIVATE GOFLAGS
COPY go.mod go.sum ./
COPY ${MODULE}/go.mod ${MODULE}/go.sum ${MODULE}/
RUN --mount=type=cache,target=/go/pkg/mod go -C ${MODULE} mod download
COPY . .
ARG VERSION
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go -C ${MODULE} build -trimpath -ldflags "-s -w -X main.stamped=${VERSION}" -o /shop ./cmd/shop

# The image has one static binary, and the CA certificates for TLS connections to PostgreSQL and Redis.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /shop /shop
USER 65532:65532
ENV SHOP_HTTP_ADDR=:8080
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s CMD ["/shop", "health"]
ENTRYPOINT ["/shop"]
CMD ["serve"]
