"""placeholder facade"""
