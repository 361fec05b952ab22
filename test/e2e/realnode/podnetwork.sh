#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A CNI plugin: it gives a pod an address of 10.88.0.0/24 on a veth pair, with a route on the node. The node routes
# between pods. Its state are folders, one per address, with the id of the sandbox that has it.
set -eu
state=${0%/*}/../addresses
node=10.255.255.1
version=$(sed -n 's/.*"cniVersion" *: *"\([^"]*\)".*/\1/p' | head -n 1)

# Runs a command in the pod's network namespace.
in_pod() { nsenter --net="$CNI_NETNS" "$@"; }

# Prints the result, for the address given.
result() {
	printf '{"cniVersion": "%s", "interfaces": [{"name": "%s", "sandbox": "%s"}], "ips": [{"version": "4", "address": "%s", "interface": 0}]}\n' \
		"$version" "$CNI_IFNAME" "$CNI_NETNS" "$1"
}

case $CNI_COMMAND in
ADD)
	if [ "$CNI_IFNAME" = lo ]; then
		in_pod ip link set lo up
		result 127.0.0.1/8
		exit
	fi
	n=2
	until mkdir "$state/$n" 2>/dev/null; do
		n=$((n + 1))
		[ "$n" -lt 255 ]
	done
	echo "$CNI_CONTAINERID" >"$state/$n/sandbox"
	ip link add name "pod$n" type veth peer name "$CNI_IFNAME" netns "$CNI_NETNS"
	ip link set "pod$n" up
	ip route add "10.88.0.$n/32" dev "pod$n"
	in_pod ip address add "10.88.0.$n/32" dev "$CNI_IFNAME"
	in_pod ip link set "$CNI_IFNAME" up
	in_pod ip route add "$node" dev "$CNI_IFNAME"
	in_pod ip route add default via "$node"
	result "10.88.0.$n/32"
	;;
DEL) # the kernel removes the pair with the pod's namespace, or here
	[ "$CNI_IFNAME" != lo ] || exit 0
	for file in "$state"/*/sandbox; do
		if [ -e "$file" ] && [ "$(cat "$file")" = "$CNI_CONTAINERID" ]; then
			n=${file%/sandbox}
			ip link delete "pod${n##*/}" 2>/dev/null || true
			rm -r "$n"
		fi
	done
	;;
VERSION)
	echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}'
	;;
esac
