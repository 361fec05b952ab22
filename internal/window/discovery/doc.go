// SPDX-License-Identifier: Apache-2.0

// Package discovery finds the expositions to scrape: the agents and dcgm-exporters
// in the operator's namespaces, and the pods' own metrics that autoscalers read.
// It trusts neither a pod's labels outside these namespaces nor the address in a
// pod's status.
package discovery
