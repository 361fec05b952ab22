# SPDX-License-Identifier: Apache-2.0
#
# The images of make images for those who have Docker, with the same files:
#   docker build --target gpupilot-agent -t gpupilot-agent .
FROM golang:1.26-bookworm AS build
ARG TARGETARCH
COPY . /src
WORKDIR /src
RUN apt-get update -q && make images ARCH=$TARGETARCH && \
    for program in gpupilot-agent gpupilot-controller gpupilot; do \
      mkdir -p /archive/$program /rootfs/$program && tar -xf bin/images/$program.tar -C /archive/$program && \
      for blob in /archive/$program/blobs/sha256/*; do \
        if gzip -t $blob 2>/dev/null; then tar -xzf $blob -C /rootfs/$program || exit 1; fi; \
      done; \
    done

FROM scratch AS gpupilot-agent
COPY --from=build /rootfs/gpupilot-agent /
ENV PATH=/usr/local/bin:/usr/bin
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64
ENV NVIDIA_VISIBLE_DEVICES=all
ENV NVIDIA_DRIVER_CAPABILITIES=utility
EXPOSE 9400/tcp
USER 0:0
ENTRYPOINT ["/usr/bin/gpupilot-agent"]

FROM scratch AS gpupilot-controller
COPY --from=build /rootfs/gpupilot-controller /
ENV PATH=/usr/local/bin:/usr/bin
EXPOSE 6443/tcp
EXPOSE 8080/tcp
USER 65532:65532
ENTRYPOINT ["/usr/bin/gpupilot-controller"]

FROM scratch AS gpupilot
COPY --from=build /rootfs/gpupilot /
ENV PATH=/usr/local/bin:/usr/bin
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
ENTRYPOINT ["/usr/bin/gpupilot"]
