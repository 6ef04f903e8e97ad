"""stakes"""
