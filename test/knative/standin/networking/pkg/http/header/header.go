// SPDX-License-Identifier: Apache-2.0

// Package header stands in for Knative's.
package header

// ProtobufMIMEType is what a queue-proxy answers.
const ProtobufMIMEType = "application/protobuf"
