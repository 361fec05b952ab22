// SPDX-License-Identifier: Apache-2.0

// Package leader elects the replica that writes, by a Lease, and runs tasks in its terms.
package leader
