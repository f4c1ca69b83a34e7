# The operator's image: one static program, and nothing else to update or to break into.
#
#   make docker-build IMG=registry.example.com/kubesentry:0.1.0
#
# The version is rust-toolchain.toml's; a test compares the two.
ARG RUST_VERSION=1.95.0

# Debian's glibc is new enough (2.34) to hold what reads /etc/hosts and asks DNS inside the static library. An older one
# would look for shared objects, and resolve no name in an empty image.
FROM rust:${RUST_VERSION}-bookworm AS build
ARG RUST_VERSION
# The image's own toolchain: rust-toolchain.toml asks for lints as well, which would be downloaded here for nothing.
ENV RUSTUP_TOOLCHAIN=${RUST_VERSION}
WORKDIR /src
COPY . .
RUN cp "$(make --no-print-directory static | tail -n 1)" /kubesentry

FROM scratch
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="kubesentry" \
      org.opencontainers.image.description="The KubeSentry operator: keeps a Deployment aligned with each App" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /kubesentry /kubesentry
COPY LICENSE /LICENSE
# A number, since this image has no names: `runAsNonRoot` can check only a number.
USER 65532:65532
# Health; metrics stay on loopback.
EXPOSE 8081
ENTRYPOINT ["/kubesentry"]
CMD ["run"]
