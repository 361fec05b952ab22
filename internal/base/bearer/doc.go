// SPDX-License-Identifier: Apache-2.0

// Package bearer reads bearer tokens of HTTP requests, and limits how many unknown ones
// are reviewed. A review asks the API server, so clients share a budget of them.
package bearer
