// SPDX-License-Identifier: Apache-2.0

// Package trust compares what exporters claim about the owners of GPUs with what the API
// server says: which node a pod runs on, and how many devices it and its node have.
//
// Every reading is compared when it is read, see Values. Audit reports contradictions.
package trust
