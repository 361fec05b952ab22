// SPDX-License-Identifier: Apache-2.0

// Package kube connects to the API server: clients, the cache and what it keeps of each
// object, the kinds that are served, and the owner of the objects that the controller
// creates for itself.
package kube
