// SPDX-License-Identifier: Apache-2.0

// Package index finds pods by name, label and owner, and the objects that have custom
// metrics beside pods.
package index
