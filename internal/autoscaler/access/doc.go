// SPDX-License-Identifier: Apache-2.0

// Package access authenticates and authorizes the viewers of the page by TokenReviews and
// SubjectAccessReviews.
package access
