// SPDX-License-Identifier: Apache-2.0

// Package runtime stands in for Knative's.
package runtime

// ProfilingDefaultPort is a port that containers may not have.
const ProfilingDefaultPort = 8008
