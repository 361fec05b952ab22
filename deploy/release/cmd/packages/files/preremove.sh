#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
set -e
# dpkg says remove, rpm says 0; an upgrade is something else.
case "$1" in
remove | 0)
	if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
		systemctl disable --now gpupilot-agent.service || true
	fi
	;;
esac
