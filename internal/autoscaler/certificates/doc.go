// SPDX-License-Identifier: Apache-2.0

// Package certificates keeps the serving certificate in a Secret, and the APIServices that
// trust it.
package certificates
