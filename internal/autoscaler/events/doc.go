// SPDX-License-Identifier: Apache-2.0

// Package events writes Events, and those of problems that last.
package events
